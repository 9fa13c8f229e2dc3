#include <random>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/format.h"
#include "dtopp/launch/launch_environment.h"

namespace dtopp::launch {
namespace {

TEST(FirstHost, is_the_first_of_the_list_as_it_is_written) {
  EXPECT_EQ(first_host("cpu1"), "cpu1");
  EXPECT_EQ(first_host("cpu1,cpu0"), "cpu1");
  EXPECT_EQ(first_host("gpu[003-006,9],cpu1"), "gpu003");
  EXPECT_EQ(first_host("gpu[9,003-006]"), "gpu9");
  EXPECT_EQ(first_host("rack[2-4]node[07-08]"), "rack2node07");
  EXPECT_EQ(first_host("gpu[12]-ib.example.org"), "gpu12-ib.example.org");
  EXPECT_EQ(first_host("node-a-1,node-a-2"), "node-a-1");
}

TEST(FirstHost, is_none_where_it_is_no_list_of_hosts) {
  for (const auto* const list :
       {"", ",a", "gpu[", "gpu[1", "gpu[1,2", "gpu[]", "gpu[a-b]", "gpu[-1]", "gpu]"})
    EXPECT_FALSE(first_host(list)) << list;
}

// Writes hosts in Slurm's compressed form and finds the first one again.
RC_GTEST_PROP(FirstHost, is_that_of_any_list, ()) {
  const auto letters = rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('a', 'z')));
  std::string list, first;
  for (int entries = *rc::gen::inRange(1, 4); entries > 0; --entries) {
    std::string entry, host;
    for (int parts = *rc::gen::inRange(1, 3); parts > 0; --parts) {
      const std::string name = *letters;
      entry += name;
      host += name;
      std::string numbers;
      for (int ranges = *rc::gen::inRange(0, 4); ranges > 0; --ranges) {
        const size_t width = *rc::gen::inRange<size_t>(1, 5);
        const auto padded = [&](int number) {
          const std::string digits = std::to_string(number);
          return std::string(width - std::min(width, digits.size()), '0') + digits;
        };
        const int from = *rc::gen::inRange(0, 2000);
        const bool is_range = *rc::gen::arbitrary<bool>();
        if (numbers.empty()) host += padded(from);
        numbers += (numbers.empty() ? "" : ",") + padded(from) + (is_range ? "-" + padded(from + 7) : "");
      }
      if (!numbers.empty()) entry += "[" + numbers + "]";
    }
    if (first.empty()) first = host;
    list += (list.empty() ? "" : ",") + entry;
  }
  RC_ASSERT(first_host(list) == first);
}

TEST(FirstHost, of_any_text_is_a_host_or_none) {
  std::mt19937 random(7);
  const std::string letters = "a09[],-(x)";
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& letter : text) letter = letters[random() % letters.size()];
    const auto host = first_host(text);
    if (!host) continue;
    ASSERT_FALSE(host->empty()) << text;
    ASSERT_EQ(host->find_first_of("[],"), std::string::npos) << text;
  }
}

TEST(TasksOnNode, counts_repeated_entries_as_nodes) {
  const auto* const list = "4(x2),3,1(x3)";
  const int64_t expected[] = {4, 4, 3, 1, 1, 1};
  for (int64_t node = 0; node < 6; ++node) EXPECT_EQ(tasks_on_node(list, node), expected[node]) << node;
  EXPECT_FALSE(tasks_on_node(list, 6));
  EXPECT_EQ(tasks_on_node("8", 0), 8);
}

TEST(TasksOnNode, is_none_where_it_is_no_such_list) {
  for (const auto* const list : {"", ",", "a", "4(x", "4(x)", "4(x2", "(x2)", "4(x2)3", "-4", "4(x-2)"})
    EXPECT_FALSE(tasks_on_node(list, 0)) << list;
}

RC_GTEST_PROP(TasksOnNode, finds_every_node_of_any_list, ()) {
  std::string list;
  std::vector<int64_t> tasks;
  for (int entries = *rc::gen::inRange(1, 6); entries > 0; --entries) {
    const auto count = *rc::gen::inRange<int64_t>(1, 300);
    const auto nodes = *rc::gen::inRange<size_t>(1, 9);
    tasks.insert(tasks.end(), nodes, count);
    list += (list.empty() ? "" : ",") + std::to_string(count);
    if (nodes > 1) list += "(x" + std::to_string(nodes) + ")";
  }
  for (size_t node = 0; node < tasks.size(); ++node)
    RC_ASSERT(tasks_on_node(list, static_cast<int64_t>(node)) == tasks[node]);
  RC_ASSERT(!tasks_on_node(list, static_cast<int64_t>(tasks.size())));
}

TEST(WholeNumber, is_digits_alone) {
  EXPECT_EQ(whole_number("0"), 0);
  EXPECT_EQ(whole_number("007"), 7);
  EXPECT_EQ(whole_number("9223372036854775807"), INT64_MAX);
  for (const auto* const text : {"", "-0", "-1", "+1", " 1", "1 ", "1.0", "x", "9223372036854775808"})
    EXPECT_FALSE(whole_number(text)) << text;
}

}  // namespace
}  // namespace dtopp::launch
