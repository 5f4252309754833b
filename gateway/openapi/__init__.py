"""The public API, described for programs (OpenAPI 3.1) and for people.

`operations`: every route, by hand.  `answers`: what they answer, as types.  `document`: both and the types that
requests are parsed by, made into one document.  `pages`: how it is served.
"""
