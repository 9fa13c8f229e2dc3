#include "dtopp/distributed/collectives/gloo_collectives.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/collectives/backend_collectives.h"
#include "dtopp/distributed/collectives/transport_error.h"

namespace dtopp::distributed {
namespace {

using c10d::ProcessGroupGloo;

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  try {
    if (!options.host.empty()) return ProcessGroupGloo::createDeviceForHostname(options.host);
    if (!options.network_interface.empty())
      return ProcessGroupGloo::createDeviceForInterface(options.network_interface);
    return ProcessGroupGloo::createDefaultDevice();
  } catch (const std::exception& error) {
    const std::string where =
        options.host.empty() ? "interface '" + options.network_interface : "host '" + options.host;
    throw UsageError("no address for " + where + "': " + reason_of(error));
  }
}

}  // namespace

std::vector<int64_t> all_ranks(int64_t size) { return edp_ranks(0, 1, size); }

std::vector<int64_t> ep_ranks(int64_t rank, int64_t ep_size) {
  std::vector<int64_t> ranks(static_cast<size_t>(ep_size));
  std::iota(ranks.begin(), ranks.end(), rank / ep_size * ep_size);
  return ranks;
}

std::vector<int64_t> edp_ranks(int64_t rank, int64_t ep_size, int64_t size) {
  TORCH_CHECK(size % ep_size == 0, size, " ranks do not divide into groups of ", ep_size);
  std::vector<int64_t> ranks;
  for (int64_t other = rank % ep_size; other < size; other += ep_size) ranks.push_back(other);
  return ranks;
}

std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& name, int64_t rank,
                                                   const std::vector<int64_t>& ranks,
                                                   const GlooOptions& options) {
  const auto position = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_CHECK(position != ranks.end(), "rank ", rank, " is not in group ", name, ", ", ranks);
  if (ranks.size() == 1) return std::make_unique<SingleRank>();
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(make_device(options));
  try {
    auto keys = c10::make_intrusive<c10d::PrefixStore>(c10::str(name, '/', ranks[0]), store);
    auto collectives = make_backend_collectives(
        c10::make_intrusive<ProcessGroupGloo>(keys, static_cast<int>(position - ranks.begin()),
                                              static_cast<int>(ranks.size()), gloo),
        c10::str("rank ", rank, ", group ", name));
    // Without this barrier a rank could leave while another still connects, which would then wait for the
    // whole timeout.
    collectives->barrier("connect").wait();
    return collectives;
  } catch (const std::exception& error) {
    throw ResourceError(c10::str("rank ", rank, " could not connect to the other ", ranks.size() - 1,
                                 " ranks of ", name, " within ", options.timeout.count(),
                                 " ms: ", reason_of(error)));
  }
}

}  // namespace dtopp::distributed
