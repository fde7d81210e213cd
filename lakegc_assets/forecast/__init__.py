"""Forecasts the garbage under other retention rules, and later in time under today's rules."""
