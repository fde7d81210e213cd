"""Forecasts the garbage under other retention rules, and in time under today's."""
