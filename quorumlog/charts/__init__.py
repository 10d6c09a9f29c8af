"""Charts as inline SVG, and the style of the pages that hold them: no script, nothing fetched."""
