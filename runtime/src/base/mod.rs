//! The ground floor: the kernel without a libc, memory of our own, facts about the process, the
//! last words. Imports nothing of the floors above.

pub mod attempt;
pub mod ceiling;
pub mod census;
pub mod control;
pub mod costs;
pub mod descriptors;
pub mod digest;
pub mod elsewhere;
pub mod facts;
pub mod futex;
pub mod guards;
pub mod heap;
pub mod keys;
pub mod last_words;
pub mod lasting;
pub mod lineage;
pub mod lock;
pub mod mapping;
pub mod maps;
pub mod messages;
pub mod namespaces;
pub mod once;
pub mod own;
pub mod populate;
pub mod processor;
pub mod program;
pub mod replaying;
pub mod signal;
pub mod stat;
pub mod sys;
pub mod vectors;
