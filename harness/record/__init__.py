"""The record of a run: its folder, its events, and their audit.

``rundir`` names the files, ``event_log`` writes and reads events, ``audit`` derives the final figures from them again.
Readers of other rooms use ``rundir``; nobody else writes to a run's folder but ``store`` and ``wandb``, each in a
folder of its own.
"""
