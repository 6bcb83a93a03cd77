"""A bar chart as SVG text: deterministic, so that a test can compare the committed picture."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

LABEL, BAR, ROW, PAD = 300, 420, 26, 12


def bar_chart(title: str, rates: Mapping[str, tuple[float, float, float]], own: frozenset[str] = frozenset()) -> str:
    """Horizontal bars, one for each label: (median, smallest, largest), the last two as a line. Labels in `own` are
    highlighted.
    """
    scale = BAR / max(high for _, _, high in rates.values())
    width, height = LABEL + BAR + 110, PAD * 2 + ROW * (len(rates) + 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="13" role="img"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{PAD}" y="{PAD + 14}" font-weight="bold">{escape(title)}</text>',
    ]
    for row, (label, (median, low, high)) in enumerate(rates.items(), 1):
        y, color = PAD + ROW * row, "#1f6feb" if label in own else "#9aa4b1"
        middle = y + ROW / 2 - 3
        out += [
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{scale * median:.1f}" height="{ROW - 6}" fill="{color}"/>',
            f'<path d="M{LABEL + scale * low:.1f} {middle}H{LABEL + scale * high:.1f}" stroke="black"/>',
            f'<text x="{LABEL + scale * max(median, high) + 6:.1f}" y="{y + 15}">{median:,.4g}</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"
