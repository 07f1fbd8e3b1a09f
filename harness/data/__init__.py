"""Click logs: text formats, packed binary records, deterministic batches, a synthetic log.

``prepare`` turns text into records, ``dataset`` gives the batch of a step, ``synth`` writes a log. A batch is a pure
function of seed and step, on which all comparisons rest: a change of it changes every result.
"""
