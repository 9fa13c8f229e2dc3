// Collectives among CPUs, over TCP, and the groups of ranks they take place in.
#pragma once

#include <chrono>

#include "dtopp/distributed/collectives/collectives.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp {

// Ranks 0 … size - 1 in aligned blocks of `block` consecutive ones; `block` divides size.
std::vector<int64_t> all_ranks(int64_t size);
// The ranks of this rank's block: an expert-parallel group.
std::vector<int64_t> ranks_of_block(int64_t rank, int64_t block);
// The ranks with this rank's place in their block, size / block of them: those that hold the same experts.
std::vector<int64_t> ranks_across_blocks(int64_t rank, int64_t block, int64_t size);

struct GlooOptions {
  // Where the other ranks reach this one: a name or an address of this host ("127.0.0.1" where all are
  // local), else a network interface ("eth0"), else the address of this host's own name.
  std::string host{}, network_interface{};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of a collective, and of connecting
};

// A group of `ranks`, ascending, `rank` among them; SingleRank where it is alone. Every one of them calls it,
// with the same name; groups of one name share no rank. Returns when all are connected. UsageError: no such
// host or interface; ResourceError: a rank does not come.
std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& name, int64_t rank,
                                                   const std::vector<int64_t>& ranks,
                                                   const GlooOptions& options);

}  // namespace dtopp
