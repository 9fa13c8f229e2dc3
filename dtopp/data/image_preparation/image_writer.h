// Writes samples to safetensors files of at most 1 GiB in a folder, so that an interrupted writer can go on.
//
// The file in the making lies in the folder as one stream a tensor (progress.images, progress.labels, …).
// When it is full, the first one, which holds nearly all, gets the others behind it and a head in front, and
// becomes images-0000N.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtopp/base/append_file.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/data/image_preparation/prepared_image.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

inline constexpr uint64_t kMaxShardBytes = uint64_t{1} << 30;

class ImageWriter {
 public:
  // Goes on after what `start`, an earlier writer's sync() or finish_shard(), had written. `facts` says which
  // tensors samples have. DataError when what was written is not there unchanged.
  ImageWriter(std::filesystem::path folder, const ImageFacts& facts, const ManifestFiles& start,
              uint64_t shard_bytes = kMaxShardBytes);

  // Whether the sample still fits into the file in the making. Into an empty one every sample does.
  bool has_room_for(const PreparedImage& image) const;
  // The sample must be of the writer's kind, shape and types.
  void append(const PreparedImage& image);
  // Returns once all is on the device: all files of the folder, with their checksums.
  ManifestFiles sync();
  // Ends the file in the making. All that was recorded lies there unchanged until begin_shard(), so that
  // whoever is interrupted before the result is recorded goes on from the record before.
  ManifestFiles finish_shard();
  void begin_shard();
  bool is_empty() const { return images_ == 0; }

  // Removes the streams of an unfinished file.
  static void remove_streams(const std::filesystem::path& folder);

 private:
  struct Stream {
    std::string name, dtype;
    std::vector<int64_t> rest;  // of the shape, after the first dimension
    uint64_t row_bytes;
    std::unique_ptr<AppendFile> file;
  };

  void add_stream(const std::string& name, const std::string& dtype, std::vector<int64_t> rest,
                  uint64_t element_bytes);
  void take_back_unrecorded();
  void open_streams(const ManifestFiles& start);
  std::vector<TensorSource> append_others();
  void put(const std::string& name, std::span<const std::byte> bytes);
  void put_number(const std::string& name, int64_t value);
  std::filesystem::path stream_path(const std::string& name) const;

  std::filesystem::path folder_;
  uint64_t shard_bytes_;
  ManifestFiles shards_;  // that are finished
  std::vector<Stream> streams_;
  uint64_t images_ = 0;  // in the file in the making
  int64_t text_tokens_ = 0;
};

}  // namespace dtopp
