"""The kinds of recovery, one class each. Their table is in ``harness.recovery.recoveries``."""
