// The interface for the communication between ranks that save a checkpoint together. distributed/ implements
// it, because checkpoint/ must not depend on distributed/.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/safetensors.h"

namespace dtopp::checkpoint {

// Bytes [begin, begin + count) of a tensor; no bytes if `tensor` is null.
struct TensorByteRange {
  std::string_view kind{};  // kind of its file (checkpoint_layout.h)
  const TensorSource* tensor = nullptr;
  uint64_t begin = 0, count = 0;
};

// gather, collect and check are collective: every rank calls them in the same order.
class SavingRanks {
 public:
  virtual ~SavingRanks() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Returns the text of every rank, in rank order.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Sends each rank its piece. This rank's bytes are passed to `take` in order. `by_rank` is the same on all
  // ranks.
  virtual void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) = 0;
  // Returns if no rank has an error. Otherwise throws this rank's error, or, if only others have one, an
  // error that names the rank.
  virtual void check(const std::exception_ptr& error) = 0;
};

// A single process that saves alone.
class OneProcess : public SavingRanks {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) override {
    for (const TensorByteRange& range : by_rank)
      if (range.tensor) range.tensor->read(range.begin, range.count, take);
  }
  void check(const std::exception_ptr& error) override {
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace dtopp::checkpoint
