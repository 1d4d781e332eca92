"""Reports and comparisons as one HTML file each, which needs no network.

``pages`` gathers what is shown, ``layout`` places a graph's nodes, ``templates`` holds the page (Jinja, everything
escaped).
"""

from ortlock.html.pages import comparison_page, report_page

__all__ = ["comparison_page", "report_page"]
