#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dtopp/data/images/picture.h"

namespace dtopp::data {
namespace {

Picture plain(int side, int channels, uint8_t level) {
  Picture picture(side, side, channels);
  std::ranges::fill(picture.pixels, level);
  return picture;
}

std::array<int, 3> pixel(const Picture& picture, int y, int x) {
  const uint8_t* at = picture.row(y) + static_cast<ptrdiff_t>(3) * x;
  return {at[0], at[1], at[2]};
}

TEST(PictureGrid, enlarges_small_pictures_and_leaves_large_ones) {
  EXPECT_EQ(draw_grid({{{plain(32, 3, 0), ""}}}).width, 2 + 64 + 2);
  EXPECT_EQ(draw_grid({{{plain(28, 3, 0), ""}}}).width, 2 + 84 + 2);
  EXPECT_EQ(draw_grid({{{plain(100, 3, 0), ""}}}).width, 2 + 100 + 2);
}

TEST(PictureGrid, places_each_picture_in_its_row_and_column) {
  const Picture grid =
      draw_grid({{{plain(64, 3, 10), ""}, {plain(64, 1, 20), ""}}, {{plain(64, 3, 30), ""}}});
  EXPECT_EQ(grid.height, 2 + 2 * 66);
  EXPECT_EQ(grid.width, 2 + 2 * 66);
  EXPECT_EQ(pixel(grid, 2, 2), (std::array<int, 3>{10, 10, 10}));
  EXPECT_EQ(pixel(grid, 65, 131), (std::array<int, 3>{20, 20, 20}));
  EXPECT_EQ(pixel(grid, 68, 65), (std::array<int, 3>{30, 30, 30}));
  for (const auto& [y, x] : {std::pair(1, 1), std::pair(66, 2), std::pair(68, 68), std::pair(133, 133)})
    EXPECT_EQ(pixel(grid, y, x), (std::array<int, 3>{255, 255, 255}));
}

TEST(PictureGrid, writes_labels_within_their_cell) {
  const auto ink = [](const Picture& grid) {
    std::vector<std::pair<int, int>> places;
    for (int y = 66; y < 78; ++y)
      for (int x = 0; x < grid.width; ++x)
        if (pixel(grid, y, x)[0] == 0) places.emplace_back(y, x);
    return places;
  };
  const auto label = [&](const std::string& text) { return ink(draw_grid({{{plain(64, 3, 99), text}}})); };
  EXPECT_EQ(draw_grid({{{plain(64, 3, 99), "a"}}}).height, 2 + 64 + 12 + 2);
  EXPECT_FALSE(label("cat").empty());
  EXPECT_NE(label("cat"), label("car"));
  EXPECT_EQ(label("0123456789"), label("0123456789 and more"));  // ten characters of six pixels fit
  EXPECT_EQ(label("a\xc3\xa9"), label("a??"));
  for (const auto& [y, x] : label("MMMMMMMMMMMM")) EXPECT_TRUE(x >= 2 && x < 66 && y >= 68 && y < 78);
}

TEST(PictureGrid, is_as_large_as_said_before) {
  const GridCell cell{plain(28, 1, 0), "a"};
  const Picture grid = draw_grid({{cell, cell, cell}, {cell}});
  const GridExtent extent = grid_extent(2, 3, 28, 28);
  EXPECT_EQ(extent.height, grid.height);
  EXPECT_EQ(extent.width, grid.width);
}

TEST(PictureGrid, refuses_nothing_and_different_sizes) {
  EXPECT_THROW(draw_grid({}), std::invalid_argument);
  EXPECT_THROW(draw_grid({{}}), std::invalid_argument);
  EXPECT_THROW(draw_grid({{{plain(8, 3, 0), ""}, {plain(9, 3, 0), ""}}}), std::invalid_argument);
}

}  // namespace

}  // namespace dtopp::data
