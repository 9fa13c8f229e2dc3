// The communication between ranks that save one checkpoint together. This file is only an interface, because
// checkpoint/ must not depend on distributed/. train/run_saving.cpp implements it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/safetensors/safetensors_writer.h"

namespace dtopp::checkpoint {

// Bytes [begin, begin + count) of a tensor, in whole elements; no bytes if `tensor` is null.
struct TensorByteRange {
  std::string_view kind{};               // kModel, kOptimizer or kEma (checkpoint_layout.h)
  const TensorSource* tensor = nullptr;  // kind and name identify its bytes; `read` may be null
  uint64_t begin = 0, count = 0;
};

// Collective:    gather, collect and check, on every rank, in the same order
class SavingRanks {
 public:
  virtual ~SavingRanks() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Returns the text of every rank, in rank order.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Sends the bytes of by_rank[r] to rank r, from the ranks that store them.
  //
  // `by_rank` has size() entries, which are the same ranges on all ranks. `take` receives the bytes of
  // by_rank[rank()] in order, in one or more parts. It must not throw, because the other ranks would wait
  // forever. Keep its error for check().
  virtual void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) = 0;
  // Takes this rank's error, or null. Returns if no rank has an error. Otherwise every rank throws: its own
  // error if it has one, else an error that names a rank with one.
  virtual void check(const std::exception_ptr& error) = 0;
};

// A single process that saves alone. It reads all bytes with TensorSource::read.
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
