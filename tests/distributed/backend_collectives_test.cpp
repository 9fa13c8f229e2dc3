#include "dtopp/distributed/backend_collectives.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor number(int64_t value, at::ScalarType type) { return at::full({}, value, type); }

// Every type, in groups of 1 to 4 ranks. The values are small integers, which every type represents exactly.
class Gloo : public testing::TestWithParam<std::tuple<int64_t, at::ScalarType>> {
 protected:
  const int64_t size_ = std::get<0>(GetParam());
  const at::ScalarType type_ = std::get<1>(GetParam());
};

TEST_P(Gloo, exchanges_equal_parts) {
  run_group(size_, [&](Collectives& group) {
    // Part j of rank r is r · size + j.
    const at::Tensor in = (at::arange(group.size()) + group.rank() * group.size()).view({-1, 1, 1});
    const at::Tensor out = at::full({group.size() * 2, 3}, -1, type_);
    const at::Tensor sent = in.expand({-1, 2, 3}).reshape({-1, 3}).to(type_).contiguous();
    group.all_to_all(out, sent, {}, "exchange").wait();
    const at::Tensor expected = (at::arange(group.size()) * group.size() + group.rank()).view({-1, 1, 1});
    EXPECT_TRUE(out.equal(expected.expand({-1, 2, 3}).reshape({-1, 3}).to(type_))) << out;
  });
}

TEST_P(Gloo, exchanges_uneven_and_empty_parts) {
  run_group(size_, [&](Collectives& group) {
    // Rank r sends r · j rows to rank j. Rank 0 sends and receives none; the other ranks send 1, 2 and 3
    // times as many.
    Splits splits;
    for (int64_t other = 0; other < group.size(); ++other) {
      splits.in.push_back(group.rank() * other);
      splits.out.push_back(group.rank() * other);
    }
    std::vector<at::Tensor> sent = {at::empty({0, 5}, type_)}, expected = sent;
    for (int64_t other = 0; other < group.size(); ++other) {
      sent.push_back(number(10 * group.rank() + other, type_).expand({group.rank() * other, 5}));
      expected.push_back(number(10 * other + group.rank(), type_).expand({group.rank() * other, 5}));
    }
    for (int64_t time = 0; time < 2; ++time) {
      const at::Tensor out = at::full_like(at::cat(expected), -1);
      group.all_to_all(out, at::cat(sent), splits, "exchange").wait();
      EXPECT_TRUE(out.equal(at::cat(expected))) << out;
    }
  });
}

TEST_P(Gloo, gathers_also_in_place) {
  run_group(size_, [&](Collectives& group) {
    const at::Tensor expected = at::arange(group.size()).view({-1, 1}).expand({-1, 6}).to(type_);
    const at::Tensor out = at::full({group.size(), 6}, -1, type_);
    group.all_gather(out, at::full({2, 3}, group.rank(), type_), "gather").wait();
    EXPECT_TRUE(out.equal(expected)) << out;
    out.fill_(-1);
    out[group.rank()].fill_(group.rank());
    group.all_gather(out, out[group.rank()], "gather").wait();
    EXPECT_TRUE(out.equal(expected)) << out;
  });
}

TEST_P(Gloo, broadcasts_from_any_rank) {
  run_group(size_, [&](Collectives& group) {
    for (int64_t root = 0; root < group.size(); ++root) {
      const at::Tensor values = at::full({7}, group.rank(), type_);
      group.broadcast(values, root, "start").wait();
      EXPECT_TRUE(values.equal(at::full({7}, root, type_))) << values;
    }
  });
}

TEST_P(Gloo, does_nothing_for_tensors_without_elements) {
  run_group(size_, [&](Collectives& group) {
    const at::Tensor none = at::empty({0, 4}, type_);
    const std::vector<int64_t> zeros(static_cast<size_t>(group.size()), 0);
    group.all_to_all(none, none, {}, "exchange").wait();
    group.all_to_all(none, none, {zeros, zeros}, "exchange").wait();
    group.all_gather(none, none, "gather").wait();
    group.broadcast(none, 0, "start").wait();
    group.all_reduce_sum(at::empty({0}, at::kDouble), "decision").wait();
    group.barrier("end").wait();
  });
}

INSTANTIATE_TEST_SUITE_P(SizesAndTypes, Gloo,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kLong, at::kDouble,
                                                          at::kByte)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  c10::toString(std::get<1>(info.param));
                         });

TEST(GlooGroup, sums_whole_numbers_and_owners_slots_exactly) {
  for (const int64_t size : {1, 2, 3, 4}) {
    run_group(size, [&](Collectives& group) {
      // Integers near 2^53 whose sum is just below it, and 1/3 in one slot per rank.
      const double large = static_cast<double>((int64_t{1} << 53) / group.size() - group.rank() - 1);
      double sum = 0;  // exact: below 2^53
      for (int64_t rank = 0; rank < group.size(); ++rank)
        sum += static_cast<double>((int64_t{1} << 53) / group.size() - rank - 1);
      const at::Tensor values = at::zeros({group.size() + 1}, at::kDouble);
      values[group.size()] = large;
      values[group.rank()] = static_cast<double>(group.rank() + 1) / 3;
      group.all_reduce_sum(values, "decision").wait();
      EXPECT_EQ(values[group.size()].item<double>(), sum);
      for (int64_t rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(values[rank].item<double>(), static_cast<double>(rank + 1) / 3);
    });
  }
}

TEST(GlooGroup, broadcasts_bytes_of_any_length) {
  run_group(3, [&](Collectives& group) {
    const std::string mine(static_cast<size_t>(group.rank() * 100000), static_cast<char>('a' + group.rank()));
    EXPECT_EQ(broadcast_bytes(group, mine, 2, "start"), std::string(200000, 'c'));
    EXPECT_EQ(broadcast_bytes(group, mine, 0, "start"), "");
  });
}

TEST(GlooGroup, gathers_bytes_of_any_length) {
  const auto of_rank = [](int64_t rank, int64_t first) {
    return std::string(static_cast<size_t>(std::max<int64_t>(0, rank - first)) * 100000,
                       static_cast<char>('a' + rank));
  };
  SingleRank alone;
  EXPECT_THAT(gather_bytes(alone, "one", "scores"), ElementsAre("one"));
  run_group(3, [&](Collectives& group) {
    for (const int64_t first : {-1, 0, 3}) {  // 1, 2, 3 times 100,000 bytes; 0, 1, 2 times; none
      EXPECT_THAT(gather_bytes(group, of_rank(group.rank(), first), "scores"),
                  ElementsAre(of_rank(0, first), of_rank(1, first), of_rank(2, first)));
    }
  });
}

TEST(GlooGroup, lets_no_rank_past_a_barrier_before_all_have_come) {
  std::atomic<int64_t> come = 0;
  run_group(4, [&](Collectives& group) {
    for (int64_t round = 1; round <= 3; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * group.rank()));
      ++come;
      group.barrier("round").wait();
      EXPECT_GE(come, round * group.size());
      group.barrier("next").wait();
    }
  });
}

TEST(GlooGroup, carries_several_at_a_time_waited_for_in_any_order) {
  run_group(3, [&](Collectives& group) {
    std::vector<at::Tensor> out;
    std::vector<Pending> pending;
    for (int64_t i = 0; i < 12; ++i) {
      out.push_back(at::full({group.size() * 1000}, -1, at::kFloat));
      pending.push_back(
          group.all_gather(out.back(), at::full({1000}, 10 * i + group.rank(), at::kFloat), "gather"));
    }
    for (int64_t i = 11; i >= 0; --i) {
      pending[static_cast<size_t>(i)].wait();
      EXPECT_TRUE(pending[static_cast<size_t>(i)].done());
      pending[static_cast<size_t>(i)].wait();  // a second wait
      const at::Tensor parts = out[static_cast<size_t>(i)].view({group.size(), -1});
      for (int64_t rank = 0; rank < group.size(); ++rank)
        EXPECT_TRUE((parts[rank] == 10 * i + rank).all().item<bool>());
    }
  });
}

TEST(GlooGroup, is_done_only_when_the_others_have_come_too) {
  std::atomic<bool> may_start = false;
  run_group(2, [&](Collectives& group) {
    if (group.rank() == 1)
      while (!may_start) std::this_thread::yield();
    Pending pending = group.barrier("start");
    if (group.rank() == 0) {
      EXPECT_FALSE(pending.done());
    }
    may_start = true;
    while (!pending.done()) std::this_thread::yield();
    pending.wait();
  });
}

TEST(GlooGroup, keeps_the_tensors_of_what_nobody_waits_for) {
  run_group(2, [&](Collectives& group) {
    for (int64_t i = 0; i < 20; ++i)
      static_cast<void>(group.all_gather(at::empty({200000}), at::ones({100000}), "gather"));
    const at::Tensor values = at::ones({1}, at::kDouble);
    group.all_reduce_sum(values, "decision").wait();
    EXPECT_EQ(values.item<double>(), 2);
  });
}

TEST(GlooGroup, names_rank_and_collective_when_another_has_gone) {
  run_ranks(2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = make_gloo_collectives(store, "all", rank, all_ranks(2), on_loopback());
    if (rank == 1) return;
    try {
      group->all_reduce_sum(at::ones({1000}, at::kDouble), "decision").wait();
      ADD_FAILURE() << "sums without rank 1";
    } catch (const ResourceError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0, group all: decision failed: "));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  });
}

TEST(GlooGroup, refuses_tensors_and_splits_that_do_not_fit) {
  run_group(2, [](Collectives& group) {
    const at::Tensor four = at::zeros({4, 3}), five = at::zeros({5, 3});
    EXPECT_THROW(static_cast<void>(group.all_to_all(five, five, {}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, at::zeros({2, 3}), {}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, four, {{2, 2}, {}}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, four, {{2, 2}, {2, 3}}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, four, {{2, 2}, {1, 1, 2}}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, at::zeros({4, 2}), {}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, four.to(at::kHalf), {}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_to_all(four, at::zeros({3, 4}).t(), {}, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_gather(four, four, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.all_reduce_sum(four, "x")), c10::Error);
    EXPECT_THROW(static_cast<void>(group.broadcast(four, 2, "x")), c10::Error);
  });
}

TEST(RanksOfGroups, are_blocks_and_what_lies_across_them) {
  EXPECT_THAT(all_ranks(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(ep_ranks(6, 4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(edp_ranks(6, 4, 12), ElementsAre(2, 6, 10));
  EXPECT_THROW(edp_ranks(0, 4, 6), c10::Error);
}

TEST(GlooSubgroups, keep_to_themselves) {
  for (const int64_t ep_size : {1, 2, 4}) {
    run_ranks(4, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
      const std::vector<std::pair<const char*, std::vector<int64_t>>> groups = {
          {"all", all_ranks(4)},
          {"experts", ep_ranks(rank, ep_size)},
          {"replicas", edp_ranks(rank, ep_size, 4)}};
      std::vector<std::unique_ptr<Collectives>> collectives;
      for (const auto& [name, ranks] : groups)
        collectives.push_back(make_gloo_collectives(store, name, rank, ranks, on_loopback()));
      std::vector<at::Tensor> gathered;
      std::vector<Pending> pending;
      for (const auto& group : collectives) {
        gathered.push_back(at::full({group->size()}, -1, at::kLong));
        pending.push_back(group->all_gather(gathered.back(), at::full({1}, rank, at::kLong), "gather"));
      }
      for (size_t i = 0; i < groups.size(); ++i) {
        pending[i].wait();
        EXPECT_TRUE(gathered[i].equal(at::tensor(groups[i].second, at::kLong))) << gathered[i];
        EXPECT_EQ(groups[i].second[static_cast<size_t>(collectives[i]->rank())], rank);
      }
    });
  }
}

TEST(GlooConnection, names_what_is_wrong) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(make_gloo_collectives(store, "b", 0, {0, 1}, {.host = "no-such-host.invalid"}), UsageError);
  GlooOptions alone = on_loopback();
  alone.timeout = std::chrono::milliseconds(200);
  try {
    make_gloo_collectives(store, "c", 0, {0, 1}, alone);
    ADD_FAILURE() << "connects to nobody";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0 could not connect to the other 1 ranks of c within 200 ms: "));
  }
}

}  // namespace

}  // namespace dtopp::distributed
