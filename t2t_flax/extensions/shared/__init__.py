"""Code that several extensions share, by subject.

The core does not use it. A test checks that each part serves at least two extensions.
"""
