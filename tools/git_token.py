#!/usr/bin/env python3
"""Answers git's question for a user or a password from GOLDEN_RECORD_TOKEN (GIT_ASKPASS)."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    question = sys.argv[1] if len(sys.argv) > 1 else ""
    user = question.startswith("Username")
    print("x-access-token" if user else os.environ.get("GOLDEN_RECORD_TOKEN", ""))
