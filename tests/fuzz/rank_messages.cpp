// Lines that ranks send each other. An accepted line prints and reads back equal.
#include "dtopp/distributed/membership/rank_records.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;
using namespace dtopp::distributed;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string line = fuzz::Input(data, size).rest();
  if (const auto state = RankState::from_line(line)) {
    const auto again = RankState::from_line(state->to_line());
    fuzz::require(again && again->to_line() == state->to_line(), "a printed state is the same");
    fuzz::require(!state->location().empty(), "a state has a location");
    RankRecords records({"a", "b"}, {});
    records.received(1, *state);
    records.pass(100);
  }
  if (const auto lost = LostRank::from_text(line)) {
    const auto again = LostRank::from_text(lost->to_text());
    fuzz::require(again && again->line() == lost->line(), "a printed loss is the same");
  }
  return 0;
}
