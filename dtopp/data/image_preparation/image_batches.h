// Reads the samples of a list of sources in batches and prepares a batch: the producer and the worker of
// prepare_images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "dtopp/data/image_preparation/image_source.h"
#include "dtopp/data/image_preparation/prepared_image.h"

namespace dtopp {

// Consecutive samples of one source.
struct ImageBatch {
  std::vector<RawSample> samples;
  std::shared_ptr<ImageSource> source;  // keeps the file open that the samples are views of
  bool ends_source = false;
};

struct PreparedBatch {
  std::vector<PreparedImage> images;
  bool ends_source = false;
};

class ImageBatches {
 public:
  // Begins at sample `sample` of source `source`.
  ImageBatches(std::vector<std::filesystem::path> sources, size_t source, uint64_t sample);
  // Returns the next batch; nullopt after the last source. Throws DataError if a source is damaged or has
  // changed since this object was constructed.
  std::optional<ImageBatch> next();

 private:
  void open();
  void require_unchanged() const;

  std::vector<std::filesystem::path> paths_;
  std::vector<std::filesystem::file_time_type> changed_;  // time of the last change per source
  size_t next_;                                           // index of the current source
  uint64_t skip_;                                         // samples to skip when it is opened
  std::shared_ptr<ImageSource> source_;
};

// Prepares the samples of a batch. A faulty sample gets a `cause` instead of an exception.
struct BatchPreparer {
  const ImageJob& job;
  const ClassPlan& plan;

  PreparedBatch operator()(ImageBatch batch, int worker) const;
};

}  // namespace dtopp
