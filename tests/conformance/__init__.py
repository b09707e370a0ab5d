"""Drives vLLM's own Scheduler beside labs.scheduler and compares every step; see tests/conformance_report.md."""
