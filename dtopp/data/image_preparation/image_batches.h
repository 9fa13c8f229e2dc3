// The samples of a list of sources in batches: what goes to the workers of a preparation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "dtopp/data/image_preparation/image_source.h"
#include "dtopp/data/image_preparation/prepared_image.h"

namespace dtopp {

// Neighbouring samples of one source.
struct ImageBatch {
  std::vector<RawSample> samples;
  std::shared_ptr<ImageSource> source;  // keeps open what samples are views of
  bool ends_source = false;
};

struct PreparedBatch {
  std::vector<PreparedImage> images;
  bool ends_source = false;
};

class ImageBatches {
 public:
  // From sample `sample` of source `source` on.
  ImageBatches(std::vector<std::filesystem::path> sources, size_t source, uint64_t sample);
  // Nothing after the last source. DataError also when a file has changed since this object was made.
  std::optional<ImageBatch> next();

 private:
  void open();
  void require_unchanged() const;

  std::vector<std::filesystem::path> paths_;
  std::vector<std::filesystem::file_time_type> changed_;  // when, of each
  size_t next_;                                           // source
  uint64_t skip_;                                         // samples of it
  std::shared_ptr<ImageSource> source_;
};

PreparedBatch prepare_batch(ImageBatch batch, const ImageJob& job, const ClassPlan& plan);

}  // namespace dtopp
