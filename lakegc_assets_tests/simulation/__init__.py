"""Runs the protocol of the sweep under virtual time, against a store and a lakeFS in memory.

A scheduler chooses every next step and every fault; an oracle knows what is live. The code that
decides and deletes is that of the product, unchanged: ``seams`` gives it another world to stand on.
"""
