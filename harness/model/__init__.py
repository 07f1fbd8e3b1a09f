"""The dense part of DLRM, and the metrics of click prediction."""
