"""Lanes: runs of many threads side by side, each with a session, a CUDA stream and an arena that nobody else uses.

``choice`` says how many there are, ``members`` makes and gives up lanes, ``pool`` hands them out, ``lanes`` runs on
them; ``failures`` knows what a failed run leaves behind, ``memory`` when there is too little. ``streams`` are CUDA's,
``interop`` orders them after the caller's, ``binding`` is an ``IOBinding`` that follows lane 0, ``asynchronous`` runs
on threads of ortlock's own, ``forks`` is about processes.
"""
