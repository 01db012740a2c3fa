"""Adapters: a framework for agents runs its commands and files in workspaces of jig.

Each module needs the package of its framework, an extra of this package: `pip install
'jig-client[inspect]'`. docs/adapters has a page for each.
"""
