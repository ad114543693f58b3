//! The freestanding runtime that every output carries: start, dispatch, run-time translation,
//! system calls, signals, threads, and the trace file.
//!
//! A library, so that what needs no kernel can be tested on the host, plus the thin binary `blob`
//! that the rewriter embeds. No libc; its own stacks, heap and system calls.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod address_map;
pub mod arena;
pub mod boot;
pub mod descriptors;
pub mod dispatch;
pub mod heap;
pub mod jit;
pub mod last_words;
pub mod libraries;
pub mod loader;
pub mod lock;
pub mod memory;
pub mod process;
pub mod recorder;
pub mod signals;
pub mod statics;
pub mod stubs;
pub mod sys;
pub mod syscalls;
pub mod table;
pub mod thread;
pub mod threads;
pub mod trace_file;
pub mod undo;
pub mod vdso;
