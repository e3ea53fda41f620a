"""The parts of the text that identifies which state a transform keeps."""

from __future__ import annotations

COMPUTING = " computing "  # between an aggregate's keys and its figures
MODE = " mode"  # after an aggregate's output mode
