package console

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

var images = flag.String("images", "", "directory for pictures of the pages")

// TestImages takes a picture of every page into the directory of -images.
func TestImages(t *testing.T) {
	if *images == "" {
		t.Skip("takes pictures only with -images=<directory>")
	}
	b := newTab(t)
	b.signIn(annToken)
	take := func(name, path, scheme string, width, height int64) {
		b.run(theme(scheme), chromedp.EmulateViewport(width, height))
		b.open(0, path)
		b.await(`!document.body.hasAttribute("data-live") || document.querySelector("#live").innerText === "live"`)
		b.picture(name)
	}
	for _, p := range pagePaths {
		take(p.name, p.path, "light", 1200, 760)
	}
	take("overview-dark", "", "dark", 1200, 760)
	take("jobs-narrow", "jobs", "dark", 360, 760)
}

// picture takes a picture of the page into the directory of -images, if there is one.
func (b *tab) picture(name string) {
	b.t.Helper()
	if *images == "" {
		return
	}
	var picture []byte
	b.run(chromedp.CaptureScreenshot(&picture))
	small, err := reduce(picture)
	if err == nil {
		err = os.MkdirAll(*images, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(*images, name+".png"), small, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// reduce returns a picture with its 256 most frequent colours.
func reduce(picture []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	counts := map[color.RGBA]int{}
	bounds := full.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	var colors []color.RGBA
	for c := range counts {
		colors = append(colors, c)
	}
	slices.SortFunc(colors, func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var palette color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		palette = append(palette, c)
	}
	nearest := map[color.RGBA]uint8{}
	for _, c := range colors {
		nearest[c] = uint8(palette.Index(c))
	}
	reduced := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			reduced.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&out, reduced)
	return out.Bytes(), err
}
