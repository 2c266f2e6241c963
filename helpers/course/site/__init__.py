"""The static site: calculators, an error's explanation, a console, the book, claims and accuracy; built offline.

    from helpers.course.site import site
    site(root, out)                              # what `workbook site` does

`packages` fetches what is pinned, once; `runtime` packs the Python that pages run; `pages` is the frame of each page.
"""

from .build import compressed_bytes, site, site_files
