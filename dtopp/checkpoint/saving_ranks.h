// The ranks that save a checkpoint together, and what they tell each other meanwhile: what carries it
// (distributed/) is above this room.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/safetensors.h"

namespace dtopp {

// Bytes [begin, begin + count) of a tensor; of none where there is no tensor.
struct TensorPiece {
  std::string_view kind{};  // of its file (checkpoint_layout.h)
  const TensorSource* tensor = nullptr;
  uint64_t begin = 0, count = 0;
};

// Every rank calls these in the same order.
class SavingRanks {
 public:
  virtual ~SavingRanks() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Every rank's text, in rank order.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Brings each rank its piece; this one's bytes go to `take`, in order. by_rank: the same on all ranks.
  virtual void collect(const std::vector<TensorPiece>& by_rank, const TakeBytes& take) = 0;
  // Returns where no rank has an error. Throws this rank's own; where only others have one, an error that
  // names the rank.
  virtual void check(const std::exception_ptr& error) = 0;
};

// One that saves alone.
class OneProcess final : public SavingRanks {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  void collect(const std::vector<TensorPiece>& by_rank, const TakeBytes& take) override {
    for (const TensorPiece& piece : by_rank)
      if (piece.tensor) piece.tensor->read(piece.begin, piece.count, take);
  }
  void check(const std::exception_ptr& error) override {
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace dtopp
