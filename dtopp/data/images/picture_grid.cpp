#include "dtopp/data/images/picture_grid.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "dtopp/data/images/glyphs.h"

namespace dtopp::data {
namespace {

constexpr int kSmallestWidth = 64;
constexpr int kGap = 2;  // pixels around each cell
constexpr int kLabelHeight = kGlyphHeight + kGap;
constexpr uint8_t kPaper = 255, kInk = 0;

int zoom_of(int width) { return (kSmallestWidth + width - 1) / width; }

struct GridSizes {
  int height = 0, width = 0;  // size of a picture before zooming
  int zoom = 1;
  int label = 0;  // height of the label under a picture
  size_t columns = 0;

  int cell_width() const { return width * zoom + kGap; }
  int cell_height() const { return height * zoom + label + kGap; }
};

GridSizes sizes_of(const std::vector<std::vector<GridCell>>& rows) {
  GridSizes sizes;
  for (const auto& row : rows) {
    sizes.columns = std::max(sizes.columns, row.size());
    for (const GridCell& cell : row) {
      if (sizes.width == 0) {
        sizes.height = cell.picture.height;
        sizes.width = cell.picture.width;
      }
      if (cell.picture.height != sizes.height || cell.picture.width != sizes.width)
        throw std::invalid_argument("draw_grid: pictures of different sizes");
      if (!cell.label.empty()) sizes.label = kLabelHeight;
    }
  }
  if (sizes.width == 0) throw std::invalid_argument("draw_grid: no pictures");
  sizes.zoom = zoom_of(sizes.width);
  return sizes;
}

void draw_picture(const Picture& picture, int zoom, int top, int left, Picture& onto) {
  for (int y = 0; y < picture.height * zoom; ++y) {
    const uint8_t* from = picture.row(y / zoom);
    uint8_t* to = onto.row(top + y) + static_cast<ptrdiff_t>(left) * 3;
    for (int x = 0; x < picture.width * zoom; ++x) {
      const uint8_t* pixel = from + static_cast<ptrdiff_t>(x / zoom) * picture.channels;
      for (int c = 0; c < 3; ++c) to[3 * x + c] = pixel[picture.channels == 3 ? c : 0];
    }
  }
}

void draw_glyph(char character, int top, int left, Picture& onto) {
  const bool known = character >= kFirstGlyph && character - kFirstGlyph < kGlyphCount;
  const auto& glyph = kGlyphs[(known ? character : '?') - kFirstGlyph];
  for (int y = 0; y < kGlyphHeight; ++y)
    for (int x = 0; x < kGlyphWidth; ++x)
      if ((glyph[y] >> (kGlyphWidth - 1 - x) & 1) != 0)
        std::fill_n(onto.row(top + y) + static_cast<ptrdiff_t>(left + x) * 3, 3, kInk);
}

void draw_text(std::string_view text, int room, int top, int left, Picture& onto) {
  for (const char character : text.substr(0, static_cast<size_t>(room / kGlyphWidth))) {
    draw_glyph(character, top, left, onto);
    left += kGlyphWidth;
  }
}

}  // namespace

Picture draw_grid(const std::vector<std::vector<GridCell>>& rows) {
  const GridSizes sizes = sizes_of(rows);
  Picture grid(kGap + static_cast<int>(rows.size()) * sizes.cell_height(),
               kGap + static_cast<int>(sizes.columns) * sizes.cell_width(), 3);
  std::ranges::fill(grid.pixels, kPaper);
  int top = kGap;
  for (const auto& row : rows) {
    int left = kGap;
    for (const GridCell& cell : row) {
      draw_picture(cell.picture, sizes.zoom, top, left, grid);
      draw_text(cell.label, sizes.width * sizes.zoom, top + sizes.height * sizes.zoom + kGap, left, grid);
      left += sizes.cell_width();
    }
    top += sizes.cell_height();
  }
  return grid;
}

GridExtent grid_extent(int64_t rows, int64_t columns, int64_t height, int64_t width) {
  const int zoom = zoom_of(static_cast<int>(width));
  return {kGap + rows * (height * zoom + kLabelHeight + kGap), kGap + columns * (width * zoom + kGap)};
}

}  // namespace dtopp::data
