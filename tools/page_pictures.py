"""Pictures of the server's page for the documentation: `python -m tools.page_pictures --workdir=pretrained:toy`.

Writes serve_page.png and serve_page_phone.png to --out. Needs the extra `serve`, the packages playwright and Pillow, and
Chromium; the pictures in docs/ were made with the fonts of Debian's fonts-texgyre.
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PIECE = "ab"  # chosen in the picture: the verb "leaves" is two words of German, "fährt ... ab"
PICTURES = {
    "serve_page.png": (
        "The train leaves on Friday at 3:45 PM.",
        {"viewport": {"width": 860, "height": 600}, "device_scale_factor": 1.5},
    ),
    "serve_page_phone.png": (
        "The train leaves on Friday.",
        {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 1.5, "color_scheme": "dark"},
    ),
}
# No services of its own, and no sandbox: in a container there is none.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
COLORS = 256


def picture(browser: Any, address: str, sentence: str, settings: dict[str, Any]) -> bytes:
    """A PNG of the whole page after a sentence was translated, with PIECE chosen."""
    with browser.new_context(**settings) as context:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#translate:enabled", timeout=300_000)
        page.uncheck("#typing")  # each text is translated once
        for _ in range(2):  # the first one compiles, and the page shows the time
            page.fill("#text", sentence)
            with page.expect_response("**/api/attention"):
                page.click("#translate")
            page.wait_for_selector("figure:visible:not([aria-busy])")
        page.check("#typing")
        page.get_by_role("button", name=PIECE, exact=True).click()
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(0, 0)
        return page.screenshot(full_page=True, animations="disabled")


def smaller(png: bytes) -> bytes:
    """The same picture with few colours."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(file, "png", optimize=True)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", default="pretrained:toy", help="a run of configs/toy.py (default: pretrained:toy)")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pictures (default: docs)")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "t2t_flax", "serve", f"--workdir={args.workdir}", "--port=0", "--max-batch=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        found = re.search(r"http://\S+", server.stdout.readline()) if server.stdout else None
        if found is None:
            raise SystemExit("the server did not start.")
        with driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS) as browser:
            for name, (sentence, settings) in PICTURES.items():
                (args.out / name).write_bytes(smaller(picture(browser, found[0], sentence, settings)))
                print(args.out / name)
        server.terminate()


if __name__ == "__main__":
    main()
