"""One run, from its configuration to its last event.

``spec`` derives what a configuration implies, ``assemble`` chooses the engine and starts the ranks, ``job`` makes the
trainer's objects, ``trainer`` is the step loop, ``boundaries`` says what is due. ``assemble`` is the one file that
knows the engine.
"""
