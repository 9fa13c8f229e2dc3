#include "dtopp/distributed/process_groups.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
namespace {

class HostAndDevice final : public Collectives {
 public:
  HostAndDevice(std::shared_ptr<Collectives> host, std::shared_ptr<Collectives> device)
      : Collectives(host->rank(), host->size()), host_(std::move(host)), device_(std::move(device)) {}

  Pending start(const Collective& collective) override {
    const Tensor &out = collective.out, &in = collective.in;
    TORCH_CHECK(!in.defined() || in.device() == out.device(), collective.what, ": `in` is on ", in.device(),
                ", but `out` on ", out.device());
    const bool on_host = !out.defined() || out.is_cpu();
    return (on_host ? *host_ : *device_).start(collective);
  }

 private:
  std::shared_ptr<Collectives> host_, device_;
};

// Calls the operator that libdtopp_cuda.so registers (nccl_backend_cuda.cpp).
c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               const Collectives& ranks, const at::Device& device,
                                               std::chrono::milliseconds timeout) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("dtopp::nccl_backend", "");
  torch::jit::Stack stack{c10::IValue::make_capsule(store), ranks.rank(), ranks.size(),
                          static_cast<int64_t>(device.index()), static_cast<int64_t>(timeout.count())};
  op.callBoxed(stack);
  return c10::static_intrusive_pointer_cast<c10d::Backend>(stack.back().toCapsule());
}

}  // namespace

ProcessGroups make_process_groups(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                  const ParallelDims& own_dims, const GlooOptions& options,
                                  const std::shared_ptr<CollectiveCounts>& counts) {
  const auto group = [&](const char* name,
                         const std::vector<int64_t>& ranks) -> std::shared_ptr<Collectives> {
    auto group = make_gloo_collectives(store, name, rank, ranks, options);
    if (!counts || ranks.size() == 1) return group;
    return std::make_shared<CountingCollectives>(std::move(group), counts);
  };
  ProcessGroups groups;
  groups.traffic = counts;
  groups.world = group("world", all_ranks(own_dims.world_size));
  const Tensor of_rank_0 = at::tensor({own_dims.nodes, own_dims.ep_size}, at::kLong);
  groups.world->broadcast(of_rank_0, /*root=*/0, "start").wait();
  const ParallelDims dims{own_dims.world_size, of_rank_0[0].item<int64_t>(), of_rank_0[1].item<int64_t>()};
  const int64_t node = dims.node_size(), first = rank / node * node;
  std::vector<int64_t> intra_node = edp_ranks(rank, dims.ep_size, node);
  for (int64_t& other : intra_node) other += first;
  groups.edp_intra_node = group("edp_intra_node", intra_node);
  groups.edp_inter_node = group("edp_inter_node", edp_ranks(rank, node, dims.world_size));
  groups.ep = group("ep", ep_ranks(rank, dims.ep_size));
  groups.saving = make_gloo_collectives(store, "saving", rank, all_ranks(dims.world_size), options);
  groups.ep_dispatch = group("ep_dispatch", ep_ranks(rank, dims.ep_size));
  return groups;
}

std::unique_ptr<Collectives> host_and_device(std::shared_ptr<Collectives> host,
                                             std::shared_ptr<Collectives> device) {
  return std::make_unique<HostAndDevice>(std::move(host), std::move(device));
}

DeviceGroups::DeviceGroups(ProcessGroups& groups, const c10::intrusive_ptr<c10d::Store>& store,
                           const at::Device& device, std::chrono::milliseconds timeout,
                           const std::shared_ptr<CollectiveCounts>& counts) {
  const int64_t rank = groups.rank();
  const auto connect = [&](const char* name, std::shared_ptr<Collectives>& group) {
    if (group->size() == 1) return;
    const std::string who = c10::str("rank ", rank, ", group ", name, " of devices");
    try {
      // Several groups share one name. The key contains the first rank of the group, which makes it unique.
      const std::string keys =
          c10::str("nccl/", name, '/', broadcast_bytes(*group, std::to_string(rank), 0, "connect"));
      groups_.push_back(
          {name, nccl_backend(c10::make_intrusive<c10d::PrefixStore>(keys, store), *group, device, timeout)});
    } catch (const RankLost&) {
      throw;
    } catch (const std::exception& error) {
      throw ResourceError(who, ": NCCL cannot connect its ", group->size(), " ranks: ", reason_of(error));
    }
    std::unique_ptr<Collectives> on_device =
        make_backend_collectives(groups_.back().backend, who, BackendFailure::kOfDevice);
    if (counts) on_device = std::make_unique<CountingCollectives>(std::move(on_device), counts);
    group = host_and_device(group, std::move(on_device));
  };
  connect("world", groups.world);
  connect("edp_intra_node", groups.edp_intra_node);
  connect("edp_inter_node", groups.edp_inter_node);
  connect("ep", groups.ep);
  connect("ep_dispatch", groups.ep_dispatch);
  groups.device = device;
}

DeviceGroups::~DeviceGroups() {
  for (const Group& group : groups_) {
    try {
      group.backend->abort();
    } catch (const std::exception&) {  // NOLINT: the process is about to end by another error
    }
  }
}

void DeviceGroups::finish() {
  std::vector<Group> groups;
  {
    const std::lock_guard lock(mutex_);
    groups.swap(groups_);
  }
  for (const Group& group : groups) group.backend->shutdown();
}

std::string DeviceGroups::failure() const {
  const std::lock_guard lock(mutex_);
  for (const Group& group : groups_) {
    const c10d::ErrorType error = group.backend->getError();
    if (error == c10d::ErrorType::SUCCESS) continue;
    return "group " + group.name + " of devices: a collective " +
           (error == c10d::ErrorType::TIMEOUT ? "timed out" : "failed; set NCCL_DEBUG=WARN for the reason");
  }
  return "";
}

}  // namespace dtopp::distributed
