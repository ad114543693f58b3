//! One table of system calls.
