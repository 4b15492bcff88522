"""Tests of Smalti; run from the repository root, never installed."""
