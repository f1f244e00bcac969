mod chaos;
mod golden;
mod theory;
