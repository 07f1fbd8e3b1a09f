"""Phrases that captions of several claims share."""

RUNS = "10 seeds (0 to 9), each with a failure trace of its own"
MEANS = (
    "A point is the mean over 10 seeds (0 to 9), a bar its 95 % interval (Student's t). Each seed has a failure trace "
    "of its own"
)
PAIRED = "AUC loss is paired with `none`, the run of the same seed without failures"
BESIDE = "Strategies at one value stand side by side."
LEFT = "Left: overhead of the emulated job (saves, loads, lost work, rescheduling)."
TRACKED = "Left: updates of tracked tables that no save held when their rank died."
