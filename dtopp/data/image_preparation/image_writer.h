// Writes samples to shards, safetensors files of at most 1 GiB. An interrupted write can be resumed.
//
// The current shard is stored as one file per tensor, called a stream (progress.images, progress.labels, …).
// When the shard is full, the other streams are appended to the first one, which holds nearly all bytes. The
// safetensors header is written in front, and the file is renamed to images-0000N.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtopp/base/append_file.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors/safetensors_writer.h"
#include "dtopp/data/image_preparation/prepared_image.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp::data {

// A shard exceeds this size only if it holds a single sample.
inline constexpr uint64_t kMaxShardBytes = uint64_t{1} << 30;

class ImageWriter {
 public:
  // Resumes after `start`, the result of an earlier writer's sync() or finish_shard(). `facts` determine the
  // tensors of the samples. Throws DataError if the data written until then are missing or changed.
  ImageWriter(std::filesystem::path folder, const ImageFacts& facts, const ManifestFiles& start,
              uint64_t shard_bytes = kMaxShardBytes);

  // Returns true if the sample fits into the current shard. Every sample fits into an empty shard.
  bool has_room_for(const PreparedImage& image) const;
  // Appends a sample to the current shard. Precondition: it has the writer's kind, shape and types.
  void append(const PreparedImage& image);
  // Syncs all streams to the device. Returns all files of the folder with their checksums.
  ManifestFiles sync();
  // Completes the current shard and returns the finished files. No recorded byte changes until begin_shard().
  // A run that is interrupted before the result is recorded therefore resumes from the earlier record.
  ManifestFiles finish_shard();
  // Begins the next shard with empty streams.
  void begin_shard();
  bool is_empty() const { return images_ == 0; }

 private:
  struct Stream {
    std::string name, dtype;
    std::vector<int64_t> rest;  // the shape after the first dimension
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
  ManifestFiles shards_;  // finished shards
  std::vector<Stream> streams_;
  uint64_t images_ = 0;  // samples in the current shard
  int64_t text_tokens_ = 0;
};

}  // namespace dtopp::data
