#include "dtopp/distributed/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace dtopp::distributed {
namespace {

int64_t bytes_of(const Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

void check_rows(const char* what, const Tensor& tensor, const std::vector<int64_t>& splits, int64_t size) {
  TORCH_CHECK(tensor.dim() > 0 && tensor.is_contiguous(), what, ": expects contiguous rows");
  if (splits.empty()) {
    TORCH_CHECK(tensor.size(0) % size == 0, what, ": ", tensor.size(0), " rows do not divide into ", size,
                " equal parts");
  } else {
    TORCH_CHECK(std::ssize(splits) == size &&
                    std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.size(0),
                what, ": splits ", splits, " of ", size, " ranks do not add up to the number of rows, ",
                tensor.size(0));
  }
}

struct CountedOperation final : Pending::Operation {
  CountedOperation(Pending inner, std::shared_ptr<CollectiveCounts> counts, const char* what, int64_t ordinal)
      : inner(std::move(inner)), counts(std::move(counts)), what(what), ordinal(ordinal) {}

  void wait() override {
    using Clock = std::chrono::steady_clock;
    counts->waiting(what, ordinal);
    const Clock::time_point begin = Clock::now();
    inner.wait();
    counts->arrived(what, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  bool done() override { return inner.done(); }

  Pending inner;
  std::shared_ptr<CollectiveCounts> counts;
  const char* what;
  int64_t ordinal;
};

}  // namespace

int64_t bytes_sent(const Collective& collective, int64_t rank, int64_t size) {
  switch (collective.kind) {
    case Collective::Kind::kAllToAll: {
      const std::vector<int64_t>& rows = collective.splits.in;
      const Tensor& in = collective.in;
      const int64_t kept = rows.empty() ? in.size(0) / size : rows[rank];
      return (in.size(0) - kept) * c10::multiply_integers(in.sizes().slice(1)) * in.element_size();
    }
    case Collective::Kind::kAllGather:
      return bytes_of(collective.in) * (size - 1);
    case Collective::Kind::kAllReduceSum:
      return 2 * bytes_of(collective.out) * (size - 1) / size;
    case Collective::Kind::kBroadcast:
      return rank == collective.root ? bytes_of(collective.out) * (size - 1) : 0;
    case Collective::Kind::kBarrier:
      return 0;
  }
  return 0;
}

Pending Collectives::all_to_all(Tensor out, Tensor in, Splits splits, const char* what) {
  check_rows(what, out, splits.out, size());
  check_rows(what, in, splits.in, size());
  TORCH_CHECK(splits.out.empty() == splits.in.empty(), what,
              ": only one of `out` and `in` has splits; give both or neither");
  TORCH_CHECK(!splits.out.empty() || out.size(0) == in.size(0), what,
              ": without splits, `in` and `out` need equally many rows, but have ", in.size(0), " and ",
              out.size(0), " rows");
  TORCH_CHECK(out.scalar_type() == in.scalar_type() && out.sizes().slice(1) == in.sizes().slice(1), what,
              ": the rows of `in` and `out` differ: ", in.scalar_type(), in.sizes(), " and ",
              out.scalar_type(), out.sizes());
  return start({.kind = Collective::Kind::kAllToAll,
                .what = what,
                .out = std::move(out),
                .in = std::move(in),
                .splits = std::move(splits)});
}

Pending Collectives::all_gather(Tensor out, Tensor in, const char* what) {
  TORCH_CHECK(out.is_contiguous() && in.is_contiguous(), what, ": expects contiguous tensors");
  TORCH_CHECK(out.scalar_type() == in.scalar_type() && out.numel() == in.numel() * size(), what, ": ", size(),
              " parts ", in.scalar_type(), in.sizes(), " do not fill ", out.scalar_type(), out.sizes());
  return start(
      {.kind = Collective::Kind::kAllGather, .what = what, .out = std::move(out), .in = std::move(in)});
}

Pending Collectives::all_reduce_sum(Tensor values, const char* what) {
  TORCH_CHECK(values.scalar_type() == at::kDouble && values.is_contiguous(), what,
              ": expects contiguous f64");
  return start({.kind = Collective::Kind::kAllReduceSum, .what = what, .out = std::move(values)});
}

Pending Collectives::broadcast(Tensor values, int64_t root, const char* what) {
  TORCH_CHECK(values.is_contiguous(), what, ": expects a contiguous tensor");
  TORCH_CHECK(root >= 0 && root < size(), what, ": root rank ", root, " is not in a group of ", size());
  return start({.kind = Collective::Kind::kBroadcast, .what = what, .out = std::move(values), .root = root});
}

Pending Collectives::barrier(const char* what) {
  return start({.kind = Collective::Kind::kBarrier, .what = what});
}

std::string broadcast_bytes(Collectives& collectives, std::string bytes, int64_t root, const char* what) {
  const Tensor length = at::scalar_tensor(std::ssize(bytes), at::kLong);
  collectives.broadcast(length, root, what).wait();
  bytes.resize(static_cast<size_t>(length.item<int64_t>()));
  // The copy outlives this function. If a wait fails, `bytes` is destroyed while the transport may still
  // write.
  const Tensor copy = at::from_blob(bytes.data(), {length.item<int64_t>()}, at::kByte).clone();
  collectives.broadcast(copy, root, what).wait();
  std::memcpy(bytes.data(), copy.const_data_ptr(), bytes.size());
  return bytes;
}

std::vector<std::string> gather_bytes(Collectives& collectives, const std::string& bytes, const char* what) {
  const auto length = std::ssize(bytes);
  const Tensor lengths = at::empty({collectives.size()}, at::kLong);
  collectives.all_gather(lengths, at::full({1}, length, at::kLong), what).wait();
  // All parts are padded to the longest one.
  const int64_t longest = lengths.max().item<int64_t>();
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(collectives.size()));
  const Tensor mine = at::zeros({longest}, at::kByte),
               all = at::empty({collectives.size(), longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), bytes.data(), bytes.size());
  collectives.all_gather(all, mine, what).wait();
  std::vector<std::string> parts;
  for (int64_t rank = 0; rank < collectives.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * longest;
    parts.emplace_back(begin, begin + lengths[rank].item<int64_t>());
  }
  return parts;
}

std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks) {
  if (ranks.size() == 1) return std::nullopt;
  const auto texts = gather_bytes(ranks, mine, "start");
  const auto other = std::ranges::find_if(texts, [&](const auto& text) { return text != texts[0]; });
  if (other == texts.end()) return std::nullopt;
  return RankDifference{other - texts.begin(), *other, texts[0]};
}

void check_devices(const std::string& identity, Collectives& ranks) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> devices = gather_bytes(ranks, identity, "start");
  for (auto device = devices.begin(); device != devices.end(); ++device) {
    const int64_t rank = device - devices.begin();
    if ((*device == "cpu") != (devices[0] == "cpu"))
      throw RanksDiffer(ExitStatus::kUsage, "rank ", rank, " computes on ", *device, ", rank 0 on ",
                        devices[0], "; choose cpu or cuda for all ranks");
    const auto same = std::find(device + 1, devices.end(), *device);
    if (*device != "cpu" && same != devices.end())
      throw RanksDiffer(ExitStatus::kUsage, "ranks ", rank, " and ", same - devices.begin(),
                        " compute on the same device, ", *device,
                        "; start one rank per CUDA device, or choose cpu");
  }
}

bool any_of(Collectives& ranks, bool here) {
  const Tensor count = at::full({1}, here ? 1.0 : 0.0, at::kDouble);
  ranks.all_reduce_sum(count, "agreement").wait();
  return count.item<double>() != 0;
}

Pending SingleRank::start(const Collective& collective) {
  if (collective.in.defined() && collective.in.data_ptr() != collective.out.data_ptr())
    collective.out.view(-1).copy_(collective.in.view(-1));
  return {};
}

std::map<std::string, Traffic> CollectiveCounts::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

Traffic CollectiveCounts::total() const {
  const std::lock_guard lock(mutex_);
  Traffic sum;
  for (const auto& [what, traffic] : traffic_) sum += traffic;
  return sum;
}

CollectiveCounts::Current CollectiveCounts::current() const {
  const std::lock_guard lock(mutex_);
  return waited_for_.waiting ? waited_for_ : last_;
}

int64_t CollectiveCounts::started(const char* what, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Traffic& traffic = traffic_[what];
  ++traffic.calls;
  traffic.bytes += bytes;
  last_ = {what, last_.ordinal + 1, false};
  return last_.ordinal;
}

void CollectiveCounts::waiting(const char* what, int64_t ordinal) {
  const std::lock_guard lock(mutex_);
  waited_for_ = {what, ordinal, true};
}

void CollectiveCounts::arrived(const char* what, double seconds) {
  const std::lock_guard lock(mutex_);
  traffic_[what].seconds += seconds;
  waited_for_.waiting = false;
}

Pending CountingCollectives::start(const Collective& collective) {
  const int64_t ordinal = counts_->started(collective.what, bytes_sent(collective, rank(), size()));
  return Pending(
      std::make_unique<CountedOperation>(inner_->start(collective), counts_, collective.what, ordinal));
}

}  // namespace dtopp::distributed
