// Writes the pictures that a model generates to files.
#pragma once

#include "dtopp/data/images/picture.h"
#include "dtopp/inference/diffusion_model.h"

namespace dtopp::eval {

// Throws UsageError if the pictures cannot be written to `output`: latents as pictures, too many pictures for
// a grid, a folder that already exists, or a file in a missing folder.
void require_writable(const fs::path& output, const inference::PictureRequest& request,
                      const data::ImageLayout& layout);

// Samples the pictures and writes them. The name selects the format:
//
//   NAME.png   one grid, see PictureGrid
//   NAME.npz   arr_0 u8 [count, H, W, 3]; for latents f32 [count, C, H, W] in the units of the prepared data.
//              arr_1 i64 [count], the classes, if the model has classes
//   else       a new folder with 00000.png, 00001.png, …
//
// The output is replaced atomically: an existing file stays until the new one is complete.
//
// Throws: DataError if writing fails; errors of PictureSampler::next
void write_pictures(const fs::path& output, const inference::PictureRequest& request,
                    const data::ImageLayout& layout, inference::PictureSampler& sampler);

// A grid of pictures. Each class or text has one row, with its name under each picture. Without classes and
// texts the grid is approximately square.
class PictureGrid {
 public:
  PictureGrid(const inference::PictureRequest& request, const data::ImageLayout& layout);
  void add(const inference::PictureBatch& pictures);
  // Returns the bytes of a PNG file.
  std::string encode() const { return data::encode_png(data::draw_grid(rows_)); }

 private:
  std::vector<std::vector<data::GridCell>> rows_;
  std::vector<std::string> labels_;  // one per row; empty without classes and texts
  int64_t columns_;
};

}  // namespace dtopp::eval
