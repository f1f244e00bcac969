//! Dialogues as traces.
