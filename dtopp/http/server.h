// An HTTP server: one thread, one request per connection, total times for each phase of a connection.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtopp/base/stop.h"

namespace dtopp::http {

struct Request {
  std::string method;
  std::string target;                       // as sent: "/update?since=3"
  std::string host, origin, authorization;  // header fields; empty if missing
  std::string body;
};

struct Answer {
  int status = 200;
  std::string type;  // Content-Type
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields{};  // further header fields
};

// The answer to one request: a whole one, or a stream. Any thread may use it, at any time. Nothing is sent if
// the connection is closed.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void answer(const Answer& answer) = 0;
  // Begins an answer with status 200 whose body follows in parts.
  virtual void begin_stream(std::string_view type) = 0;
  virtual void send(std::string_view part) = 0;
  virtual void end_stream() = 0;
  // Returns false once the client has left or its time is over.
  virtual bool is_open() const = 0;
};

class Handler {
 public:
  virtual ~Handler() = default;
  // Answers now, or later from another thread. Called on the server's thread.
  virtual void handle(const Request& request, std::shared_ptr<Exchange> exchange) = 0;
  // The answer to a request that the server refuses itself: 400, 413, 431, 408 after ServerLimits::request,
  // or 503 after ServerLimits::answer.
  virtual Answer refuse(int status) = 0;
};

struct ServerLimits {
  size_t connections = 64;           // further clients wait in the system's queue
  size_t body_bytes = 0;             // of a request
  std::chrono::seconds request{10};  // from accepting to the last byte of the request
  std::chrono::seconds answer{30};   // from there to the last byte of the answer
};

class Server {
 public:
  // With port 0 the system chooses a free one. Throws UsageError, which begins with `option`, if the address
  // cannot be listened on.
  Server(const std::string& address, uint16_t port, const ServerLimits& limits, const std::string& option);
  ~Server();

  uint16_t port() const;
  // Serves requests until `stop`, which is polled several times per second. Then accepts no more, and gives
  // answers that are being sent up to five seconds. A server runs once.
  void run(Handler& handler, const StopToken& stop);

 private:
  struct Listener;
  std::unique_ptr<Listener> listener_;
  ServerLimits limits_;
};

// Returns 128 random bits in hexadecimal digits, too many to guess.
std::string random_token();

}  // namespace dtopp::http
