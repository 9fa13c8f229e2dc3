#include "dtopp/http/server.h"

#include <atomic>
#include <ctime>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/base/spent_files.h"

namespace dtopp::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Answers "/" and leaves every other request to the server's limits.
struct Answering : Handler {
  void handle(const Request& request, std::shared_ptr<Exchange> exchange) override {
    last = exchange;
    if (request.target == "/") exchange->answer({.type = "text/plain", .body = "here"});
  }
  Answer refuse(int status) override { return {status, "text/plain", "refused"}; }

  std::shared_ptr<Exchange> last;
};

class ServedHandler {
 public:
  explicit ServedHandler(Handler& handler)
      : server_("127.0.0.1", 0, {.body_bytes = 1000, .request = seconds(1), .answer = seconds(1)}, "--port"),
        thread_([&] { server_.run(handler, StopToken(is_over_)); }) {}
  ~ServedHandler() {
    is_over_ = true;
    thread_.join();
  }
  uint16_t port() const { return server_.port(); }

 private:
  std::atomic<bool> is_over_ = false;
  Server server_;
  std::thread thread_;
};

// A connection to the server, or an open socket for one.
class Client {
 public:
  Client() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit Client(uint16_t port) : Client() { connect(port); }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void connect(uint16_t port) const {
    const sockaddr_in address{
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  void send(const std::string& text) const {
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // All that the server sends until it ends the connection.
  std::string receive() const {
    std::string text;
    char part[4096];
    for (ssize_t count = 0; (count = ::recv(socket_, part, sizeof part, 0)) > 0;)
      text.append(part, static_cast<size_t>(count));
    return text;
  }

 private:
  int socket_;
};

TEST(HttpServer, a_request_that_does_not_arrive_in_time_is_answered) {
  Answering handler;
  const ServedHandler served(handler);
  const Client silent(served.port()), without_body(served.port()), half(served.port());
  without_body.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12");
  half.send("GET / HT");
  EXPECT_THAT(without_body.receive(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(half.receive(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(silent.receive(), "");
}

TEST(HttpServer, an_answer_that_takes_too_long_is_refused) {
  Answering handler;
  const ServedHandler served(handler);
  const Client client(served.port());
  client.send("GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServer, a_refusal_never_lies_in_an_answer_that_has_begun) {
  // The answer begins at the moment at which the server refuses it.
  struct Late final : Answering {
    Answer refuse(int status) override {
      last->begin_stream("text/plain");
      last->send("part");
      return Answering::refuse(status);
    }
  } handler;
  const ServedHandler served(handler);
  const Client client(served.port());
  client.send("GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string answer = client.receive();
  EXPECT_THAT(answer.substr(4), Not(HasSubstr("HTTP/1.1")));
  EXPECT_THAT(answer, testing::EndsWith("refused"));
}

TEST(HttpServer, waits_without_work_while_no_file_can_be_opened) {
  Answering handler;
  const ServedHandler served(handler);
  const Client client;
  std::clock_t used = 0;
  {
    const SpentFiles spent;
    client.connect(served.port());
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(milliseconds(500));
    used = std::clock() - before;
  }
  EXPECT_LT(used, CLOCKS_PER_SEC / 10);  // of half a second
  EXPECT_THAT(client.receive(), HasSubstr("here"));
}

}  // namespace
}  // namespace dtopp::http
