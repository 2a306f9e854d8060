"""Carries out many calls of one function: in processes of this machine, or on a Dask cluster.

Nothing here knows what the function does. It is named by its module and name, so that another
process can import it without this program's main module; it takes and returns plain data.
"""
