"""Failure logs of real clusters, what can be said about them, and made-up ones: files that the injector replays."""
