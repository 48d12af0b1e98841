"""As much of SVG as the pictures need. The same calls give the same text, on every machine."""

from __future__ import annotations

from html import escape

__all__ = ["GREY", "INK", "PAPER", "Svg"]

INK, GREY, PAPER = "#1f2933", "#616e7c", "#ffffff"
_FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"


class Svg:
    """One picture; lengths are pixels at its natural size."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._colours: list[str] = []
        self._lines: list[str] = []
        self._head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'"
            f" viewBox='0 0 {width} {height}' {_FONT} role='img'>\n<title>{escape(title)}</title>\n"
            f"<rect width='{width}' height='{height}' fill='{PAPER}'/>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        weight: float = 1,
        round: float = 6,
    ) -> None:
        self._lines.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='{round:g}'"
            f" fill='{fill}' stroke='{stroke}' stroke-width='{weight:g}'/>"
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        anchor: str = "middle",
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        weight = " font-weight='bold'" * bold
        self._lines.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}'"
            f" fill='{colour}'{weight}>{escape(words)}</text>"
        )

    def path(
        self, d: str, colour: str, *, arrow: bool = False, weight: float = 1, dots: bool = False
    ) -> None:
        more = ""
        if arrow:
            if colour not in self._colours:
                self._colours.append(colour)
            more = f" marker-end='url(#a{self._colours.index(colour)})'"
        if dots:
            more += " stroke-dasharray='2 4'"
        self._lines.append(
            f"<path d='{d}' fill='none' stroke='{colour}' stroke-width='{weight:g}'{more}/>"
        )

    def render(self) -> str:
        heads = "".join(
            f"<marker id='a{n}' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='9'"
            f" markerHeight='9' markerUnits='userSpaceOnUse' orient='auto'>"
            f"<path d='M0,0 L10,5 L0,10 z' fill='{colour}'/></marker>"
            for n, colour in enumerate(self._colours)
        )
        return "\n".join((self._head, f"<defs>{heads}</defs>", *self._lines, "</svg>\n"))
