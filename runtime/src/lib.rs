//! Placeholder: says that it took over, and exits with 42.
#![no_std]
