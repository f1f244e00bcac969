mod chaos;
mod theory;
