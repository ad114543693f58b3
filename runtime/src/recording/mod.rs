//! Recording: a thread's chunks and events, and the file that frames are allocated in.

pub mod appender;
pub mod description;
pub mod lifecycle;
pub mod naming;
mod packer;
pub mod recorder;
pub mod trace_file;
