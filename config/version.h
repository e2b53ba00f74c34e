#pragma once
/* Of the whole node: kvnode --version, kvctl status, the Server header. */
#define KVNODE_VERSION "0.1.0"
