#include "dtopp/distributed/membership/own_address.h"

#include <gtest/gtest.h>

namespace dtopp::distributed {
namespace {

using Routes = std::vector<std::optional<Route>>;

TEST(RouteTo, finds_the_address_that_the_other_host_sees) {
  EXPECT_EQ(route_to("127.0.0.1"), (Route{"127.0.0.1", "127.0.0.1"}));
  EXPECT_EQ(route_to("127.0.1.1")->remote, "127.0.1.1");
}

TEST(OwnAddress, is_where_a_rank_sends_from) {
  const Routes routes = {Route{"10.0.0.1", "10.0.0.1"}, Route{"10.0.0.2", "10.0.0.1"}};
  EXPECT_EQ(own_address(routes, 0), "10.0.0.1");
  EXPECT_EQ(own_address(routes, 1), "10.0.0.2");
}

TEST(OwnAddress, of_a_host_that_knows_itself_by_loopback_alone_is_what_others_know) {
  const Route inside = {"127.0.0.1", "127.0.1.1"};
  const Routes routes = {inside, inside, Route{"10.0.0.2", "10.0.0.1"}};
  EXPECT_EQ(own_address(routes, 0), "10.0.0.1");
  EXPECT_EQ(own_address(routes, 1), "10.0.0.1");
}

TEST(OwnAddress, is_on_loopback_where_all_ranks_are) {
  const Route inside = {"127.0.0.1", "127.0.1.1"};
  EXPECT_EQ(own_address({inside, inside}, 1), "127.0.0.1");
}

TEST(OwnAddress, is_unknown_without_a_route) {
  EXPECT_EQ(own_address({std::nullopt, Route{"10.0.0.2", "10.0.0.1"}}, 0), "");
}

}  // namespace
}  // namespace dtopp::distributed
